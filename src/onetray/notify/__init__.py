"""Wake threads and requests after a commit, of this process or of another one."""
