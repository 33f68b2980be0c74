import ast, dis, io
tree = ast.parse("x = [i ** 2 for i in range(3)]")
print(ast.dump(tree), ast.unparse(tree), ast.literal_eval("{'a': [1, (2,)]}"))
out = io.StringIO()
dis.dis("a + b", file=out)
print(out.getvalue())
ast.literal_eval("__import__('os')")
