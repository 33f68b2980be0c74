value = 1 + 2 + [][0]
