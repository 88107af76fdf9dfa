//! Objects of one kind are much alike: each is kept as its difference to one of them. Pure.

/// Runs of fewer equal bytes are not worth telling by their place.
const RUN: usize = 6;
/// So many places of a sample that begin alike are compared.
const TRIED: usize = 32;
/// So many objects are kept whole for others to be told by. They are never given up, so there may not be many.
const SAMPLES: usize = 8;

/// A text, as its difference to a sample: the sample's number, then by turns how many bytes are new, these bytes, and from where how many
/// bytes of the sample follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed(Box<[u8]>);

/// The texts by which others are told.
#[derive(Debug, Default)]
pub struct Packer {
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    text: Box<[u8]>,
    /// Where each run of [`RUN`] bytes begins; sorted.
    places: Box<[([u8; RUN], u32)]>,
}

impl Packer {
    /// Packs a text. One that is like none before becomes a sample.
    pub fn pack(&mut self, text: &[u8]) -> Packed {
        let packed = self.samples.iter().zip(0_u8..).map(|(sample, number)| sample.pack(number, text));
        match packed.min_by_key(Vec::len) {
            Some(best) if best.len() * 2 <= text.len() || self.samples.len() >= SAMPLES => Packed(best.into()),
            _ => {
                let sample = Sample::of(text);
                let number = u8::try_from(self.samples.len()).unwrap_or(u8::MAX);
                let packed = Packed(sample.pack(number, text).into());
                self.samples.push(sample);
                packed
            }
        }
    }

    /// The text; `None` for what another packer has packed.
    pub fn unpack(&self, Packed(packed): &Packed) -> Option<Vec<u8>> {
        let (number, mut rest) = packed.split_first()?;
        let sample = self.samples.get(usize::from(*number))?;
        let mut text = Vec::with_capacity(sample.text.len());
        while !rest.is_empty() {
            let new = number_of(&mut rest)?;
            text.extend_from_slice(rest.get(..new)?);
            rest = rest.get(new..)?;
            if !rest.is_empty() {
                let (from, many) = (number_of(&mut rest)?, number_of(&mut rest)?);
                text.extend_from_slice(sample.text.get(from..)?.get(..many)?);
            }
        }
        Some(text)
    }
}

impl Sample {
    fn of(text: &[u8]) -> Self {
        let runs = text.windows(RUN).filter_map(|run| <[u8; RUN]>::try_from(run).ok());
        let mut places: Vec<_> = runs.zip(0_u32..).collect();
        places.sort_unstable();
        Self { text: text.into(), places: places.into() }
    }

    fn pack(&self, number: u8, text: &[u8]) -> Vec<u8> {
        let mut packed = vec![number];
        // what is ahead, and how much of it is new
        let (mut ahead, mut new) = (text, 0);
        while let Some(here) = ahead.get(new..).filter(|here| !here.is_empty()) {
            let Some((from, many)) = self.longest(here) else {
                new += 1;
                continue;
            };
            put_new(&mut packed, ahead.get(..new).unwrap_or_default());
            put_number(&mut packed, from);
            put_number(&mut packed, many);
            ahead = here.get(many..).unwrap_or_default();
            new = 0;
        }
        if new > 0 {
            put_new(&mut packed, ahead);
        }
        packed
    }

    /// Where the sample goes on for longest as this text does, and for how many bytes.
    fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        let run: [u8; RUN] = text.get(..RUN)?.try_into().ok()?;
        let first = self.places.partition_point(|(other, _)| *other < run);
        let alike = self.places.iter().skip(first).take_while(|(other, _)| *other == run).take(TRIED);
        let lengths = alike.filter_map(|(_, from)| {
            let from = usize::try_from(*from).ok()?;
            let equal = self.text.get(from..)?.iter().zip(text).take_while(|(a, b)| a == b).count();
            Some((from, equal))
        });
        lengths.max_by_key(|(_, equal)| *equal)
    }
}

fn put_new(packed: &mut Vec<u8>, bytes: &[u8]) {
    put_number(packed, bytes.len());
    packed.extend_from_slice(bytes);
}

/// Seven bits a byte, the lowest first; all but the last have the eighth.
fn put_number(packed: &mut Vec<u8>, mut number: usize) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            packed.push(low);
            return;
        }
        packed.push(low | 0x80);
    }
}

fn number_of(rest: &mut &[u8]) -> Option<usize> {
    let mut number = 0_usize;
    for shift in (0..usize::BITS).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_is_packed_is_unpacked_as_it_was(
            texts in prop::collection::vec(
                prop_oneof![
                    "[ab]{0,60}".prop_map(String::into_bytes),
                    "(\"name\":\"t[0-9]{1,3}\",|\"status\":\"True\",){0,40}".prop_map(String::into_bytes),
                    prop::collection::vec(any::<u8>(), 0..400),
                ],
                1..24,
            )
        ) {
            let mut packer = Packer::default();
            let packed: Vec<Packed> = texts.iter().map(|text| packer.pack(text)).collect();
            for (packed, text) in packed.iter().zip(&texts) {
                let unpacked = packer.unpack(packed);
                prop_assert_eq!(unpacked.as_ref(), Some(text));
            }
            prop_assert!(packer.samples.len() <= SAMPLES);
        }

        #[test]
        fn what_nobody_packed_is_refused_or_read_but_never_ends_the_program(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut packer = Packer::default();
            packer.pack(b"{\"status\":\"True\"}");
            packer.unpack(&Packed(bytes.into()));
        }
    }

    #[test]
    fn one_that_is_like_another_takes_a_fraction_of_the_room() {
        let text = |name: &str| {
            format!(
                "{{\"name\":\"{name}\",\"hard\":{{\"pods\":\"20\",\"requests.cpu\":\"8\"}},\"used\":{{\"pods\":\"0\",\"requests.cpu\":\"0\"}}}}"
            )
        };
        let mut packer = Packer::default();
        packer.pack(text("team-00000").as_bytes());
        let Packed(other) = packer.pack(text("team-00001").as_bytes());
        assert!(other.len() < 24, "{} bytes", other.len());
        assert_eq!(packer.samples.len(), 1);
    }
}
