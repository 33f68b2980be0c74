text = """never ends
line
