n = int(input())
print(sum(int(input()) for _ in range(n)))
print(repr(input("prompt> ")))
try:
    input()
except EOFError as error:
    print("EOF", error)
