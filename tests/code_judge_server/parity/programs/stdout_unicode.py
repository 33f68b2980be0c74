print("äöü ß € 你好 \U0001f600 \u202e abc")
print("\x00 nul \x07 bell \x1b[31mred\x1b[0m")
print(ascii("é"), repr("\u2028"))
