//! Expected layouts of a GPU of seven slices: every combination to which no instance can be added, each instance with its start,
//! and combinations that do not exist.
//!
//! The first nineteen are those of the figure in NVIDIA's MIG user guide; the others have instances of one slice with the memory
//! of two, which the figure leaves out. A `1g` of any combination may be the one `1g+me`.

/// Profiles by their ids on the device, which are the same on every board of seven slices while names tell its memory.
pub const PROFILES: [(&str, u32); 7] =
    [("1g", 19), ("1g+me", 20), ("1g.double", 15), ("2g", 14), ("3g", 9), ("4g", 5), ("7g", 0)];

pub const COMBINATIONS: [&str; 78] = [
    "7g@0",
    "4g@0 3g@4",
    "4g@0 2g@4 1g@6",
    "4g@0 1g@4 1g@5 1g@6",
    "3g@0 3g@4",
    "3g@0 2g@4 1g@6",
    "3g@0 1g@4 1g@5 1g@6",
    "2g@0 2g@2 3g@4",
    "2g@0 2g@2 2g@4 1g@6",
    "2g@0 2g@2 1g@4 1g@5 1g@6",
    "2g@0 1g@2 1g@3 3g@4",
    "2g@0 1g@2 1g@3 2g@4 1g@6",
    "2g@0 1g@2 1g@3 1g@4 1g@5 1g@6",
    "1g@0 1g@1 2g@2 3g@4",
    "1g@0 1g@1 2g@2 2g@4 1g@6",
    "1g@0 1g@1 2g@2 1g@4 1g@5 1g@6",
    "1g@0 1g@1 1g@2 1g@3 3g@4",
    "1g@0 1g@1 1g@2 1g@3 2g@4 1g@6",
    "1g@0 1g@1 1g@2 1g@3 1g@4 1g@5 1g@6",
    "4g@0 2g@4 1g.double@6",
    "4g@0 1g@4 1g@5 1g.double@6",
    "4g@0 1g.double@4 1g@6",
    "4g@0 1g.double@4 1g.double@6",
    "3g@0 2g@4 1g.double@6",
    "3g@0 1g@4 1g@5 1g.double@6",
    "3g@0 1g.double@4 1g@6",
    "3g@0 1g.double@4 1g.double@6",
    "2g@0 2g@2 2g@4 1g.double@6",
    "2g@0 2g@2 1g@4 1g@5 1g.double@6",
    "2g@0 2g@2 1g.double@4 1g@6",
    "2g@0 2g@2 1g.double@4 1g.double@6",
    "2g@0 1g@2 1g@3 2g@4 1g.double@6",
    "2g@0 1g@2 1g@3 1g@4 1g@5 1g.double@6",
    "2g@0 1g@2 1g@3 1g.double@4 1g@6",
    "2g@0 1g@2 1g@3 1g.double@4 1g.double@6",
    "2g@0 1g.double@2 3g@4",
    "2g@0 1g.double@2 2g@4 1g@6",
    "2g@0 1g.double@2 2g@4 1g.double@6",
    "2g@0 1g.double@2 1g@4 1g@5 1g@6",
    "2g@0 1g.double@2 1g@4 1g@5 1g.double@6",
    "2g@0 1g.double@2 1g.double@4 1g@6",
    "2g@0 1g.double@2 1g.double@4 1g.double@6",
    "1g@0 1g@1 2g@2 2g@4 1g.double@6",
    "1g@0 1g@1 2g@2 1g@4 1g@5 1g.double@6",
    "1g@0 1g@1 2g@2 1g.double@4 1g@6",
    "1g@0 1g@1 2g@2 1g.double@4 1g.double@6",
    "1g@0 1g@1 1g@2 1g@3 2g@4 1g.double@6",
    "1g@0 1g@1 1g@2 1g@3 1g@4 1g@5 1g.double@6",
    "1g@0 1g@1 1g@2 1g@3 1g.double@4 1g@6",
    "1g@0 1g@1 1g@2 1g@3 1g.double@4 1g.double@6",
    "1g@0 1g@1 1g.double@2 3g@4",
    "1g@0 1g@1 1g.double@2 2g@4 1g@6",
    "1g@0 1g@1 1g.double@2 2g@4 1g.double@6",
    "1g@0 1g@1 1g.double@2 1g@4 1g@5 1g@6",
    "1g@0 1g@1 1g.double@2 1g@4 1g@5 1g.double@6",
    "1g@0 1g@1 1g.double@2 1g.double@4 1g@6",
    "1g@0 1g@1 1g.double@2 1g.double@4 1g.double@6",
    "1g.double@0 2g@2 3g@4",
    "1g.double@0 2g@2 2g@4 1g@6",
    "1g.double@0 2g@2 2g@4 1g.double@6",
    "1g.double@0 2g@2 1g@4 1g@5 1g@6",
    "1g.double@0 2g@2 1g@4 1g@5 1g.double@6",
    "1g.double@0 2g@2 1g.double@4 1g@6",
    "1g.double@0 2g@2 1g.double@4 1g.double@6",
    "1g.double@0 1g@2 1g@3 3g@4",
    "1g.double@0 1g@2 1g@3 2g@4 1g@6",
    "1g.double@0 1g@2 1g@3 2g@4 1g.double@6",
    "1g.double@0 1g@2 1g@3 1g@4 1g@5 1g@6",
    "1g.double@0 1g@2 1g@3 1g@4 1g@5 1g.double@6",
    "1g.double@0 1g@2 1g@3 1g.double@4 1g@6",
    "1g.double@0 1g@2 1g@3 1g.double@4 1g.double@6",
    "1g.double@0 1g.double@2 3g@4",
    "1g.double@0 1g.double@2 2g@4 1g@6",
    "1g.double@0 1g.double@2 2g@4 1g.double@6",
    "1g.double@0 1g.double@2 1g@4 1g@5 1g@6",
    "1g.double@0 1g.double@2 1g@4 1g@5 1g.double@6",
    "1g.double@0 1g.double@2 1g.double@4 1g@6",
    "1g.double@0 1g.double@2 1g.double@4 1g.double@6",
];

/// Combinations that do not exist at any placement.
pub const REFUSED: [&str; 22] = [
    // too many compute slices
    "7g 1g",
    "7g 1g+me",
    "7g 7g",
    "4g 4g",
    "4g 3g 1g",
    "3g 3g 3g",
    "3g 3g 2g",
    "4g 2g 2g",
    "4g 2g 1g 1g",
    "4g 1g 1g 1g 1g",
    "3g 2g 2g 1g",
    "2g 2g 2g 2g",
    "2g 2g 2g 1g 1g",
    "1g 1g 1g 1g 1g 1g 1g 1g",
    // enough compute slices, but no memory or no placement
    "3g 3g 1g",
    "4g 3g 1g.double",
    "3g 2g 2g 1g.double",
    "3g 1g.double 1g.double 1g.double",
    "1g.double 1g.double 1g.double 1g.double 1g",
    "1g.double 1g.double 1g.double 1g.double 1g.double",
    // one set of media engines
    "1g+me 1g+me",
    "3g 1g+me 1g+me",
];

/// Invalid placements, alone or next to each other.
pub const MISPLACED: [&str; 14] = [
    "7g@1",
    "4g@4",
    "4g@1",
    "3g@3",
    "3g@2",
    "2g@6",
    "2g@1",
    "1g@7",
    "1g.double@1",
    "4g@0 1g@3",
    "3g@4 1g@6",
    "2g@2 1g@3",
    "1g.double@6 1g@6",
    "3g@0 2g@2",
];

/// A row of ids with optional starts.
pub fn read(row: &str) -> Vec<(u32, Option<u32>)> {
    let id = |name: &str| PROFILES.iter().find(|(n, _)| *n == name).map(|(_, id)| *id);
    row.split(' ')
        .map(|instance| match instance.split_once('@') {
            Some((name, start)) => (id(name).expect(row), Some(start.parse().expect(row))),
            None => (id(instance).expect(row), None),
        })
        .collect()
}
