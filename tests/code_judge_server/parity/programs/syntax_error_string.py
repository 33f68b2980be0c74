print("unterminated)
