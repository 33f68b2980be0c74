error = TypeError("with notes")
error.add_note("first note")
error.add_note("second\nnote")
raise error
