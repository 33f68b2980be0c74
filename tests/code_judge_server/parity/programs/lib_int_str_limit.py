print(len(str(10**4000)))
int("9" * 5000)
