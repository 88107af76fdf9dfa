//! Random numbers that decide what a document contains.

/// Texts that decoders may take for something else, or cut at a wrong place.
const TEXTS: [&str; 24] = [
    "",
    "a",
    "0",
    "-1",
    "1.5",
    "1e3",
    "0x1f",
    "true",
    "no",
    "null",
    "~",
    "é",
    "\u{1f980}",
    "a b",
    " a",
    "a: b",
    "- a",
    "# a",
    "&a",
    "*a",
    "10Gi",
    "1h30m",
    "\"",
    "a\nb",
];

/// Numbers at the limits of types and fields.
const NUMBERS: [i64; 14] =
    [0, 1, -1, 2, 7, 15, 16, 128, 2_147_483_647, 2_147_483_648, -2_147_483_648, 4_294_967_295, i64::MAX, i64::MIN];

/// A limited number of random choices. When they are used up every further one is the simplest, so fewer choices make a smaller document.
#[derive(Clone, Debug)]
pub struct Choices {
    state: u64,
    left: usize,
}

impl Choices {
    /// So many choices from this seed.
    pub fn new(seed: u64, left: usize) -> Self {
        Self { state: seed, left }
    }

    /// `SplitMix64`.
    fn next(&mut self) -> u64 {
        if self.left == 0 {
            return 0;
        }
        self.left -= 1;
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one; 0 if there is none.
    pub fn below(&mut self, limit: usize) -> usize {
        // the remainder fits in a usize
        usize::try_from(self.next() % u64::try_from(limit.max(1)).unwrap_or(1)).unwrap_or_default()
    }

    /// True once in so many times, at least two.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == times.saturating_sub(1)
    }

    /// One of these values.
    pub fn pick<'v, T>(&mut self, values: &'v [T]) -> Option<&'v T> {
        values.get(self.below(values.len()))
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap_or_default()
    }

    /// A number, often one at the limit of a type.
    pub fn number(&mut self) -> i64 {
        if self.once_in(3) {
            return i64::from_le_bytes(self.next().to_le_bytes());
        }
        self.pick(&NUMBERS).copied().unwrap_or_default()
    }

    /// A text, often one that looks like another type.
    pub fn text(&mut self) -> String {
        if self.once_in(3) {
            return (0..self.below(12)).map(|_| self.character()).collect();
        }
        self.pick(&TEXTS).map(|&text| text.to_owned()).unwrap_or_default()
    }

    fn character(&mut self) -> char {
        let most = if self.once_in(4) { 0x11_0000 } else { 0x80 };
        u32::try_from(self.below(most)).ok().and_then(char::from_u32).unwrap_or('x')
    }
}
