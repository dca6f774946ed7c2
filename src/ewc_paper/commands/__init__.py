"""The commands of `ewc`, one file each; `ewc_paper.cli` puts them together."""
