number_of_items = 3
print(number_of_itens)
