"""What `derby new operator` tries with torch: which axes a function has, what it gives at which sizes."""
