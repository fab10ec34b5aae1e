"""The commands of `radixgen`, one a file. They use what `import radixgen` gives anyone."""
