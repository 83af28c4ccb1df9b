"""The commands of `./go bench`, a file for each group. They own options and output; what is measured is one up."""
