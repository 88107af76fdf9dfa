//! Reading and writing the memory of a process by address: which allocation, and so which physical memory, an address belongs to.

use std::ops::Range;

use crate::{
    abi::{Failure, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, Pointer, UNKNOWN},
    process::{FIRST_ADDRESS, Process},
};

/// Where a byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// The key of what holds it, its size in bytes, and its device.
    key: u64,
    bytes: u64,
    device: usize,
    /// The byte's offset there, and how many bytes follow from it on.
    offset: u64,
    left: u64,
}

impl Process {
    /// The physical ranges of these addresses, in their order.
    fn ranges(&mut self, pointer: Pointer, bytes: u64) -> Result<Vec<Range<u64>>, Failure> {
        self.current_device()?;
        let end = pointer.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let (mut places, mut at) = (Vec::new(), pointer);
        while at < end {
            let place = self.place_of(at)?;
            // only mappings can follow each other in a range
            if places.last().is_some_and(|before: &Place| before.key.max(place.key) >= FIRST_ADDRESS) {
                return Err(INVALID_VALUE);
            }
            let left = place.left.min(end - at);
            places.push(Place { left, ..place });
            at += left;
        }
        if places.iter().any(|place| !self.content.holds(place.key)) {
            // what pools keep is freed without a change of what the device counts
            self.free_content();
        }
        let Self { store, devices, content, .. } = self;
        let mut found = Vec::new();
        for place in &places {
            let identity = &devices.get(place.device).ok_or(INVALID_DEVICE)?.identity;
            let of = (identity.gpu, identity.instance);
            found.extend(part(content.place(store, of, (place.key, place.bytes))?, place.offset, place.left));
        }
        Ok(found)
    }

    /// Where the byte with this address is.
    fn place_of(&self, pointer: Pointer) -> Result<Place, Failure> {
        let place = |key: u64, start: u64, (bytes, device): (u64, usize)| {
            let offset = pointer - start;
            (offset < bytes).then(|| Place { key, bytes, device, offset, left: bytes - offset })
        };
        let plain = self.allocations.range(..=pointer).next_back();
        if let Some(found) = plain.and_then(|(at, of)| place(*at, *at, (of.bytes, of.device))) {
            return Ok(found);
        }
        let mapped = self.virtual_memory.mappings.range(..=pointer).next_back();
        if let Some((at, (bytes, handle))) = mapped.filter(|(at, (bytes, _))| pointer - **at < *bytes) {
            let of = self.virtual_memory.memory.get(handle).ok_or(INVALID_VALUE)?;
            // of the host: not simulated
            let device = of.device.ok_or(NOT_SUPPORTED)?;
            let found = place(*handle, *at, (of.bytes, device)).ok_or(INVALID_VALUE)?;
            return Ok(Place { left: found.left.min(at + bytes - pointer), ..found });
        }
        if let Some(found) =
            self.graphs.left_at(pointer).and_then(|of| place(of.address, of.address, (of.bytes, of.device)))
        {
            return Ok(found);
        }
        Err(if self.imports.knows(pointer) { NOT_SUPPORTED } else { INVALID_VALUE })
    }

    /// After something was freed: its physical memory is free as well.
    pub fn free_content(&mut self) {
        if self.content.is_empty() {
            return;
        }
        let Self { content, allocations, virtual_memory, graphs, .. } = self;
        content.keep(|key| {
            let left = || graphs.left_at(key).is_some_and(|of| of.address == key);
            allocations.contains_key(&key) || virtual_memory.memory.contains_key(&key) || left()
        });
    }

    /// Fails unless all of these addresses can be accessed.
    pub fn check_memory(&mut self, pointer: Pointer, bytes: u64) -> Result<(), Failure> {
        self.ranges(pointer, bytes).map(drop)
    }

    /// Reads from an address on.
    pub fn read_memory(&mut self, from: Pointer, mut to: &mut [u8]) -> Result<(), Failure> {
        let ranges = self.ranges(from, to.len() as u64)?;
        let physical = self.content.physical(&self.store)?;
        for range in ranges {
            let count = length(&range).min(to.len());
            let (part, rest) = std::mem::take(&mut to).split_at_mut(count);
            physical.read(range.start, part).map_err(|_| UNKNOWN)?;
            to = rest;
        }
        Ok(())
    }

    /// Writes from an address on.
    pub fn write_memory(&mut self, to: Pointer, mut from: &[u8]) -> Result<(), Failure> {
        let ranges = self.ranges(to, from.len() as u64)?;
        let physical = self.content.physical(&self.store)?;
        for range in ranges {
            let (part, rest) = from.split_at(length(&range).min(from.len()));
            physical.write(range.start, part).map_err(|_| UNKNOWN)?;
            from = rest;
        }
        Ok(())
    }

    /// Repeats a unit of one, two or four bytes from an address on.
    pub fn fill_memory(&mut self, to: Pointer, unit: &[u8], count: u64) -> Result<(), Failure> {
        let size = unit.len() as u64;
        if !to.is_multiple_of(size) {
            return Err(INVALID_VALUE);
        }
        // all ranges begin and end at multiples of the unit
        let ranges = self.ranges(to, count.checked_mul(size).ok_or(INVALID_VALUE)?)?;
        let physical = self.content.physical(&self.store)?;
        ranges.iter().try_for_each(|range| physical.fill(range, unit)).map_err(|_| UNKNOWN)
    }
}

/// Bytes of a range.
fn length(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(usize::MAX)
}

/// So many bytes of ranges that follow each other, from an offset on.
fn part(ranges: &[Range<u64>], offset: u64, bytes: u64) -> Vec<Range<u64>> {
    let (mut skip, mut wanted, mut found) = (offset, bytes, Vec::new());
    for range in ranges {
        let size = range.end - range.start;
        let start = range.start + skip.min(size);
        skip = skip.saturating_sub(size);
        let end = range.end.min(start + wanted);
        if end > start {
            found.push(start..end);
        }
        wanted -= end - start;
    }
    found
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]
mod tests {
    use super::*;

    #[test]
    fn part_of_ranges_begins_at_the_offset_and_ends_after_its_bytes() {
        let ranges = [100..110, 200..205, 300..320];
        assert_eq!(part(&ranges, 0, 35), ranges);
        assert_eq!(part(&ranges, 3, 4), [103..107]);
        assert_eq!(part(&ranges, 9, 8), [109..110, 200..205, 300..302]);
        assert_eq!(part(&ranges, 15, 1), [300..301]);
        assert!(part(&ranges, 5, 0).is_empty());
    }
}
