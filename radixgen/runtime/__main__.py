"""`python -m radixgen.runtime`: started by `radixgen.launch`, of no use by hand."""

from radixgen.runtime.process import main

if __name__ == "__main__":
    main()
