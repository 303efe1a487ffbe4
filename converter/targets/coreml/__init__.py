"""Core ML: .mlpackage files for iPhones, written and checked on any machine."""
