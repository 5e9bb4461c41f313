"""`python -m ginlab`: the command `ginlab`."""

from ginlab._program import main

main()
