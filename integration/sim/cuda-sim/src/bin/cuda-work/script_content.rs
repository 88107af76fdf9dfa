//! Calls of a script that write, copy and search memory.

use clap::ValueEnum;
use libloading::Library;

use crate::{
    Failed,
    residue::{self, FOUND, Form},
};

/// `None` for a line that it does not know. `pointer` is the address of a block.
pub fn call(cuda: &Library, pointer: impl Fn(u64) -> Option<u64>, words: &[&str]) -> Option<Result<(), Failed>> {
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let size = |at: usize| usize::try_from(number(at)?).ok();
    let block = |at: usize| pointer(number(at)?);
    let form = |at: usize| words.get(at).map_or(Some(Form::Plain), |word| Form::from_str(word, false).ok());
    Some(match *words.first()? {
        // BLOCK BYTES SEED [FORM]
        "write" => residue::write(cuda, block(1)?, size(2)?, number(3)?, form(4)?),
        "verify" => residue::verify(cuda, block(1)?, size(2)?, number(3)?, form(4)?),
        // BLOCK BYTES VALUE [FORM]
        "set" => residue::fill(cuda, block(1)?, size(2)?, u32::try_from(number(3)?).ok()?, form(4)?, false),
        "set-words" => residue::fill(cuda, block(1)?, size(2)?, u32::try_from(number(3)?).ok()?, form(4)?, true),
        "verify-words" => {
            let word = u32::try_from(number(3)?).ok()?;
            residue::contains(cuda, block(1)?, size(2)?, &word.to_ne_bytes().repeat(1 << 19), form(4)?)
        }
        // TO FROM BYTES [FORM]
        "copy" => residue::copy(cuda, block(1)?, block(2)?, size(3)?, form(4)?),
        // SEED: keeps all memory until the program ends
        "search" => {
            residue::all(cuda).and_then(|blocks| match residue::found(cuda, &blocks, number(1).unwrap_or(0))? {
                (_, 0) => Ok(()),
                _ => Err(Failed("search", FOUND)),
            })
        }
        _ => return None,
    })
}
