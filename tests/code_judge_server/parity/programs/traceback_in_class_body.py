class Broken:
    x = 1
    y = undefined_name
