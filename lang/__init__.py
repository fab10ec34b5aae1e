"""The language: programs that call a model many times and share what they have said."""
