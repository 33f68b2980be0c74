raise ValueError("x" * 500 + "\n" + "second line\n\tthird")
