raise GeneratorExit("from main")
