"""The answers (report.answer.Answer) behind `import kernelderby` and behind the command."""
