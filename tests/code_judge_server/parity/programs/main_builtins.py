import builtins

print(sorted(dir(builtins)))
print(exit, quit, copyright, credits, license, help)
