"""Ready-made programs: a module each, with a program to use or to copy and a `main()` to see it.

radixgen run lang.programs.react
"""
