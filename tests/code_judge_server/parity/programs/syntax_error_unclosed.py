values = [1, 2,
print("never")
