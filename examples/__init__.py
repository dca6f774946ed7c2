"""Scripts to read and to copy from."""
