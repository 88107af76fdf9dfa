//! Another owner of a node's GPUs, as whoever reads the cluster found it.

/// Another owner of a node's GPUs, with the sign of it and what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConflictingOwner {
    /// Its name, as people know it.
    pub by: &'static str,
    /// The evidence.
    pub sign: String,
    /// The remedy, as a clause.
    pub remedy: String,
}
