"""What several test files share. Knows the package, no test."""
