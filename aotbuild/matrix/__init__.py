"""Many builds as one document: recipes times GPUs times sizes, built in processes, resumed."""
