//! Boards: which MIG instances fit together on a GPU, and what a layout leaves over.
//!
//! `shape` is what a profile asks for. `geometry` has a board and its MIG profiles as the agent discovered them, and `Occupancy`, the
//! instances placed on one GPU so far. `shares` has the shares of a GPU without MIG. `packing` enumerates every set of instances that
//! fits. `leftover` counts the slices that no profile can use.

mod geometry;
mod leftover;
mod packing;
mod shape;
mod shares;

pub(crate) use self::shares::{PARTS, ShareCapacity};
pub use self::{
    geometry::{BoardGeometry, MigProfile, Occupancy},
    shape::{Shape, ShareShape, ShareSize},
    shares::ShareOffer,
};
pub(crate) use self::{
    leftover::{Leftover, Leftovers},
    packing::{Item, MAX_ITEMS, Packing, chosen, packings},
};
