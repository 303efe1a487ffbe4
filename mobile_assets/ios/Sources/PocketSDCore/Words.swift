/// A prompt with its accents composed, every run of blanks one space, and in lower case.
func normalised(_ prompt: String) -> [Unicode.Scalar] {
    var found: [Unicode.Scalar] = []
    var afterBlank = false
    for scalar in Canonical.composed(prompt) {
        if scalar.properties.isWhitespace {
            if !afterBlank { found.append(" ") }
        } else {
            // One by one: within a word a final sigma would get its own form; CLIP gives it none.
            found += scalar.properties.lowercaseMapping.unicodeScalars
        }
        afterBlank = scalar.properties.isWhitespace
    }
    return found
}

/// Contractions, runs of letters, single digits, runs of anything else that is not a blank.
func words(in text: [Unicode.Scalar]) -> [[Unicode.Scalar]] {
    var found: [[Unicode.Scalar]] = []
    var position = 0
    while position < text.count {
        if let contraction = contractions.first(where: { text[position...].starts(with: $0) }) {
            found.append(contraction)
            position += contraction.count
            continue
        }
        let kind = Kind(text[position])
        var end = position + 1
        if kind == .letter || kind == .other {
            while end < text.count, Kind(text[end]) == kind { end += 1 }
        }
        if kind != .blank { found.append(Array(text[position..<end])) }
        position = end
    }
    return found
}

func text(_ scalars: [Unicode.Scalar]) -> String {
    var view = String.UnicodeScalarView()
    view.append(contentsOf: scalars)
    return String(view)
}

/// Without blanks at both ends, as Python understands them.
func trimmed(_ text: String) -> String {
    func isBlank(_ scalar: Unicode.Scalar) -> Bool {
        scalar.properties.isWhitespace || (0x1C...0x1F).contains(scalar.value)
    }
    let scalars = Array(text.unicodeScalars)
    guard let first = scalars.firstIndex(where: { !isBlank($0) }),
        let last = scalars.lastIndex(where: { !isBlank($0) })
    else { return "" }
    return PocketSDCore.text(Array(scalars[first...last]))
}

private let contractions = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"].map {
    Array($0.unicodeScalars)
}

private enum Kind {
    case blank, letter, digit, other

    init(_ scalar: Unicode.Scalar) {
        if scalar.properties.isWhitespace {
            self = .blank
            return
        }
        switch scalar.properties.generalCategory {
        case .uppercaseLetter, .lowercaseLetter, .titlecaseLetter, .modifierLetter, .otherLetter:
            self = .letter
        case .decimalNumber, .letterNumber, .otherNumber: self = .digit
        default: self = .other
        }
    }
}
