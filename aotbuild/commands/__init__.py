"""The commands of the command line, one noun or verb a file; `cli` says which there are."""
