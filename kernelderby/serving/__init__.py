"""The tools as a server for programs that write kernels (Model Context Protocol)."""
