import io, keyword, symtable, tokenize
for token in tokenize.generate_tokens(io.StringIO("def f(x): return x").readline):
    print(token.type, token.string, token.start)
print(keyword.iskeyword("match"), keyword.softkwlist, symtable.symtable("x = 1", "<s>", "exec").get_identifiers())
