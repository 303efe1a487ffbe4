/// Follows the version of the Python package.
public let pocketSDVersion = "0.1.0"
