"""What `import kernelderby` offers, and the command asks too: questions in, answers (report.answer.Answer) out."""
