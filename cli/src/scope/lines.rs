//! Lines of the kernel that several CPUs store to, by function.

use std::collections::BTreeMap;

use freehold_scope_record::SharedStore;
use serde::Serialize;

use super::symbols::{IMAGE, Names};

/// Stores of a function to cache lines of several CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SharedLines {
    /// The function.
    pub function: String,
    /// The kernel's static at that place; null for the heap, stacks and tables.
    pub data: Option<String>,
    /// Largest possible number of times that such a line moved to it: see `results.sharing`.
    pub moves: u64,
}

/// Returns the functions of these stores, most moves first.
pub fn by_function<'a>(stores: impl IntoIterator<Item = &'a SharedStore>, names: &Names) -> Vec<SharedLines> {
    let mut sums: BTreeMap<(String, Option<String>), u64> = BTreeMap::new();
    for store in stores {
        let data = (store.address >= IMAGE).then(|| names.function(store.address));
        *sums.entry((names.function(store.by), data)).or_default() += store.moves;
    }
    let row = |((function, data), moves)| SharedLines { function, data, moves };
    let mut list: Vec<SharedLines> = sums.into_iter().map(row).collect();
    list.sort_by_key(|lines| u64::MAX - lines.moves);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_function_stores_is_one_row_for_each_static() {
        let store = |by, address, moves| SharedStore { by, address, moves };
        let stores = vec![
            store(0xffff_ffff_8100_0000, 0xffff_8880_0000_1000, 2),
            store(0xffff_ffff_8100_0000, 0xffff_ffff_8200_0000, 5),
            store(0xffff_ffff_8100_0000, 0xffff_8880_0000_2000, 4),
        ];
        let rows = by_function(&stores, &Names::none());
        let seen: Vec<_> = rows.iter().map(|row| (row.moves, row.data.as_deref())).collect();
        assert_eq!(seen, [(6, None), (5, Some("0xffffffff82000000"))]);
        assert_eq!(rows[0].function, "0xffffffff81000000");
    }
}
