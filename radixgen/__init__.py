"""A structured-generation engine with a radix prefix cache."""
