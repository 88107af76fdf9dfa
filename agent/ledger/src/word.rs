//! The words of the count. Each has units in its high bits and a number of operations in its low bits, so that a word that was changed meanwhile is
//! not mistaken for the one that was read.
//!
//! A balance has what one account holds, and the number of its operations. The total has the sum of all balances, and which operation of which
//! account changed it last.

/// Bits below the units.
const TAG_BITS: u32 = 28;
const TAG: u64 = (1 << TAG_BITS) - 1;
/// Most units: 16 TiB.
pub(crate) const MAX_UNITS: u64 = u64::MAX >> TAG_BITS;
/// Bits of the number of operations that the total has.
const SERIAL_BITS: u32 = 17;
const SERIAL: u64 = (1 << SERIAL_BITS) - 1;
/// Bits of the account's index in its slot; the slot's index is above it.
const ACCOUNT_BITS: u32 = 3;

/// Where an account is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) account: usize,
}

/// Units of a word.
pub(crate) fn units(word: u64) -> u64 {
    word >> TAG_BITS
}

/// The balance after one more operation.
pub(crate) fn next(balance: u64, units: u64) -> u64 {
    units.min(MAX_UNITS) << TAG_BITS | (balance.wrapping_add(1) & TAG)
}

/// The total after the operation that makes `next` the balance of an account.
pub(crate) fn total(units: u64, place: Place, next: u64) -> u64 {
    let account = (place.slot << ACCOUNT_BITS | place.account) as u64;
    units.min(MAX_UNITS) << TAG_BITS | (account << SERIAL_BITS & TAG) | (next & SERIAL)
}

/// The account that changed the total last.
pub(crate) fn place(total: u64) -> Place {
    let index = |bits: u64| usize::try_from(bits).unwrap_or(usize::MAX);
    let account = (total & TAG) >> SERIAL_BITS;
    Place { slot: index(account >> ACCOUNT_BITS), account: index(account & ((1 << ACCOUNT_BITS) - 1)) }
}

/// Is the last operation of the total that from `balance` to `next`?
pub(crate) fn is_last(total: u64, balance: u64, next: u64) -> bool {
    next & SERIAL == total & SERIAL && next & TAG == balance.wrapping_add(1) & TAG
}
