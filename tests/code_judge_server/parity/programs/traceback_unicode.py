def größe():
    raise ValueError("Größe ≠ 3 \U0001f600 \ud800")


größe()
