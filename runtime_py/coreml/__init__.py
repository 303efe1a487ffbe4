"""Core ML packages (.mlpackage) read and evaluated without Core ML."""
