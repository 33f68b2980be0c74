print("asked")
name = input("Name? ")
print("never")
