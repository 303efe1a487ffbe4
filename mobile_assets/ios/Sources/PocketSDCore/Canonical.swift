/// Unicode's normal form C, by the algorithm of its chapter 3.11.
enum Canonical {
    typealias Scalars = [Unicode.Scalar]

    static func composed(_ text: String) -> Scalars {
        let scalars = Scalars(text.unicodeScalars)
        if scalars.allSatisfy({ $0.value < 0xC0 }) { return scalars }  // nothing maps down here
        return joined(sorted(scalars.flatMap(decomposed)))
    }

    private static func decomposed(_ scalar: Unicode.Scalar) -> Scalars {
        if let syllable = Hangul.parts(of: scalar) { return syllable }
        guard let mapping = tables.mappings[scalar] else { return [scalar] }
        return mapping.flatMap(decomposed)
    }

    /// Runs of combining marks in the order of their classes, those of one class as they stand.
    private static func sorted(_ scalars: Scalars) -> Scalars {
        var found = scalars
        for end in found.indices.dropFirst() {
            let kind = combiningClass(found[end])
            var place = end
            while kind > 0, place > 0, combiningClass(found[place - 1]) > kind {
                found.swapAt(place, place - 1)
                place -= 1
            }
        }
        return found
    }

    private static func joined(_ scalars: Scalars) -> Scalars {
        var found: Scalars = []
        var starter: Int?
        var lastClass = 0  // of what stands between the starter and the next scalar
        for scalar in scalars {
            let kind = combiningClass(scalar)
            let isNext = starter == found.count - 1
            if let place = starter, isNext || lastClass < kind,
                let whole = Hangul.joined(found[place], scalar)
                    ?? tables.wholes[Pair(first: found[place], second: scalar)]
            {
                found[place] = whole
                continue
            }
            if kind == 0 { starter = found.count }
            lastClass = kind
            found.append(scalar)
        }
        return found
    }

    private static func combiningClass(_ scalar: Unicode.Scalar) -> Int {
        Int(scalar.properties.canonicalCombiningClass.rawValue)
    }

    private struct Pair: Hashable, Sendable {
        let first: Unicode.Scalar
        let second: Unicode.Scalar
    }

    private typealias Tables = (mappings: [Unicode.Scalar: Scalars], wholes: [Pair: Unicode.Scalar])

    private static let tables: Tables = {
        var mappings: [Unicode.Scalar: Scalars] = [:]
        var wholes: [Pair: Unicode.Scalar] = [:]
        var next: UInt32 = 0
        for word in canonicalMappings.split(whereSeparator: \.isWhitespace) {
            if word.hasSuffix(":") {
                next = UInt32(word.dropLast(), radix: 16) ?? 0
                continue
            }
            let parts = word.split { "+-".contains($0) }
                .compactMap { UInt32($0, radix: 16).flatMap(Unicode.Scalar.init) }
            guard let scalar = Unicode.Scalar(next) else { continue }
            mappings[scalar] = parts
            if word.contains("+") { wholes[Pair(first: parts[0], second: parts[1])] = scalar }
            next += 1
        }
        return (mappings, wholes)
    }()
}

/// Korean syllables are made of two or three letters by arithmetic.
private enum Hangul {
    private static let syllables: UInt32 = 0xAC00, leads: UInt32 = 0x1100, vowels: UInt32 = 0x1161
    private static let trails: UInt32 = 0x11A7  // the one before the first
    private static let count: (leads: UInt32, vowels: UInt32, trails: UInt32) = (19, 21, 28)

    static func parts(of scalar: Unicode.Scalar) -> [Unicode.Scalar]? {
        guard scalar.value >= syllables else { return nil }
        let index = scalar.value - syllables
        guard index < count.leads * count.vowels * count.trails else { return nil }
        let (pair, trail) = index.quotientAndRemainder(dividingBy: count.trails)
        let (lead, vowel) = pair.quotientAndRemainder(dividingBy: count.vowels)
        let parts = [leads + lead, vowels + vowel] + (trail == 0 ? [] : [trails + trail])
        return parts.compactMap(Unicode.Scalar.init)
    }

    static func joined(_ first: Unicode.Scalar, _ second: Unicode.Scalar) -> Unicode.Scalar? {
        let (a, b) = (first.value, second.value)
        if a >= leads, a - leads < count.leads, b >= vowels, b - vowels < count.vowels {
            return Unicode.Scalar(
                syllables + ((a - leads) * count.vowels + b - vowels) * count.trails)
        }
        guard a >= syllables, parts(of: first)?.count == 2, b > trails, b - trails < count.trails
        else { return nil }
        return Unicode.Scalar(a + b - trails)
    }
}
