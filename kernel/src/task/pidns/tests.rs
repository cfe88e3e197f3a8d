//! The numbering, compared with a naive model.

use std::collections::BTreeMap;
use std::vec::Vec as List;

use proptest::prelude::*;

use super::super::registry::{PID_MAX, Registry};
use super::*;
use crate::task::credentials::Credentials;

/// After the largest number, numbers begin again here.
const RESERVED: Pid = 300;

#[derive(Clone, Debug)]
enum Step {
    /// Makes a namespace below one of the existing ones.
    Make(usize),
    /// Allocates an ID in one of them.
    Allocate(usize),
    /// Allocates an ID with given numbers for the innermost levels.
    Choose(usize, List<Pid>),
    /// Releases one of the IDs.
    Release(usize),
    /// Makes the next number come after this one.
    Jump(usize, Pid),
    /// Ends one of the namespaces: nothing can be created in it.
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let number = || prop_oneof![1u32..6, PID_MAX - 3..PID_MAX];
    prop_oneof![
        2 => any::<usize>().prop_map(Step::Make),
        8 => any::<usize>().prop_map(Step::Allocate),
        3 => (any::<usize>(), prop::collection::vec(number(), 1..3)).prop_map(|(at, all)| Step::Choose(at, all)),
        4 => any::<usize>().prop_map(Step::Release),
        2 => (any::<usize>(), number()).prop_map(|(at, last)| Step::Jump(at, last)),
        1 => any::<usize>().prop_map(Step::End),
    ]
}

/// A namespace of the model.
struct Model {
    namespace: PidNs,
    /// The namespaces above and this one, beginning with the outermost below the initial one.
    path: List<usize>,
    /// IDs by number.
    used: BTreeMap<Pid, Pid>,
    last: Pid,
    has_init: bool,
    is_ended: bool,
}

impl Model {
    fn next(&self) -> Option<Pid> {
        if !self.has_init {
            return (!self.used.contains_key(&1)).then_some(1);
        }
        let after = self.last.max(1) + 1..PID_MAX;
        after.chain(RESERVED..PID_MAX).find(|number| !self.used.contains_key(number))
    }
}

/// Returns the numbers to be allocated along `path`, or the reason of a failure.
fn expected(all: &[Model], path: &[usize], wanted: &[Pid]) -> Result<List<Pid>> {
    path.iter()
        .enumerate()
        .map(|(index, &at)| {
            let model = &all[at];
            if path[..=index].iter().any(|&above| all[above].is_ended) {
                return Err(Errno::ENOMEM);
            }
            match wanted.get(path.len() - 1 - index) {
                Some(&number) if number != 1 && !model.has_init => Err(Errno::EINVAL),
                Some(number) if model.used.contains_key(number) => Err(Errno::EEXIST),
                Some(&number) => Ok(number),
                None => model.next().ok_or(Errno::ENOMEM),
            }
        })
        .collect()
}

proptest! {
    #[test]
    fn numbers_are_given_and_found_as_in_a_list_of_lists(steps in prop::collection::vec(step(), 1..60)) {
        let mut registry = Registry::empty();
        let mut all: List<Model> = List::new();
        let mut ids: List<(Numbers, List<usize>, List<Pid>)> = List::new();
        for step in steps {
            match step {
                Step::Make(at) => {
                    let parent = (at % (all.len() + 1)).checked_sub(1);
                    let above = parent.map_or(PidNs::INITIAL, |parent| all[parent].namespace.clone());
                    let Ok(namespace) = above.make_below(&Credentials::of_user(0, 0)) else { continue };
                    let mut path = parent.map_or(List::new(), |parent| all[parent].path.clone());
                    path.push(all.len());
                    let (used, last) = (BTreeMap::new(), 0);
                    all.push(Model { namespace, path, used, last, has_init: false, is_ended: false });
                }
                Step::Allocate(at) | Step::Choose(at, _) => {
                    let wanted = if let Step::Choose(_, wanted) = &step { &wanted[..] } else { &[] };
                    let at = (at % (all.len() + 1)).checked_sub(1);
                    let path = at.map_or(List::new(), |at| all[at].path.clone());
                    let wanted = &wanted[..wanted.len().min(path.len())];
                    let namespace = at.map_or(PidNs::INITIAL, |at| all[at].namespace.clone());
                    let told = registry.allocate(Levels::new(&namespace).unwrap(), wanted);
                    // A failed call has advanced the levels above the one that refused.
                    for (index, &level) in path.iter().enumerate() {
                        let before = expected(&all, &path[..=index], &wanted[wanted.len().min(path.len() - 1 - index)..]);
                        let Ok(numbers) = before else { break };
                        let is_chosen = wanted.len() > path.len() - 1 - index;
                        if !is_chosen && all[level].has_init {
                            all[level].last = numbers[index];
                        }
                    }
                    let now = told.as_ref().ok().map(|numbers| {
                        path.iter().map(|&at| numbers.in_view(all[at].namespace.view())).collect::<List<Pid>>()
                    });
                    match told {
                        Err(error) => prop_assert_eq!(expected(&all, &path, wanted).err(), Some(error)),
                        Ok(numbers) => {
                            let shown = now.unwrap();
                            prop_assert_eq!(numbers.own(), shown.last().copied().unwrap_or(numbers.id()));
                            for (&at, &number) in path.iter().zip(&shown) {
                                prop_assert!(all[at].used.insert(number, numbers.id()).is_none());
                                prop_assert!(number == 1 || all[at].has_init);
                                if number == 1 {
                                    // From now on the first process exists.
                                    all[at].has_init = true;
                                    all[at].namespace.set_init(numbers.id());
                                }
                            }
                            ids.push((numbers, path, shown));
                        }
                    }
                }
                Step::Release(at) if !ids.is_empty() => {
                    let (numbers, path, shown) = ids.swap_remove(at % ids.len());
                    registry.release(numbers.id());
                    for (at, number) in path.into_iter().zip(shown) {
                        all[at].used.remove(&number);
                    }
                }
                Step::Jump(at, last) if !all.is_empty() => {
                    let at = at % all.len();
                    all[at].last = last;
                    all[at].namespace.set_last(last);
                }
                Step::End(at) if !all.is_empty() => {
                    let at = at % all.len();
                    all[at].is_ended = true;
                    registry.end_namespace(&all[at].namespace);
                }
                Step::Release(_) | Step::Jump(..) | Step::End(_) => {}
            }
            for model in &all {
                for (&number, &id) in &model.used {
                    prop_assert_eq!(registry.pid_below(model.namespace.view(), number), Some(id));
                }
                prop_assert_eq!(registry.pid_below(model.namespace.view(), 0), None);
            }
            for (numbers, path, shown) in &ids {
                for (at, model) in all.iter().enumerate() {
                    let place = path.iter().position(|&other| other == at);
                    prop_assert_eq!(numbers.in_view(model.namespace.view()), place.map_or(0, |place| shown[place]));
                    let mut row = List::new();
                    numbers.each_from(model.namespace.view(), |_, number| row.push(number));
                    prop_assert_eq!(&row[..], place.map_or(&[][..], |place| &shown[place..]));
                    let is_in = place.is_some();
                    prop_assert_eq!(model.namespace.contains(numbers.namespace()), is_in);
                }
                let mut row = List::new();
                numbers.each_from(PidView::INITIAL, |_, number| row.push(number));
                prop_assert_eq!(row[0], numbers.id());
                prop_assert_eq!(&row[1..], &shown[..]);
            }
            let used: usize = all.iter().map(|model| model.used.len()).sum();
            prop_assert_eq!(registry.numbers_below(), used);
        }
    }
}

#[test]
fn namespaces_are_32_levels_deep_at_most() {
    let mut namespace = PidNs::INITIAL;
    for level in 1..=MOST_LEVELS {
        namespace = namespace.make_below(&Credentials::of_user(0, 0)).unwrap();
        assert_eq!(namespace.level(), level);
    }
    assert_eq!(namespace.make_below(&Credentials::of_user(0, 0)).err(), Some(Errno::ENOSPC));
}

#[test]
fn the_owner_is_in_the_user_namespace_of_the_one_above() {
    let inner = UserNs::new(&Credentials::of_user(0, 0)).unwrap();
    let namespace = PidNs::INITIAL
        .make_below(&Credentials { user_ns: inner.clone(), ..Credentials::of_user(0, 0) })
        .unwrap();
    assert_eq!(namespace.owner(), inner);
    assert_eq!(namespace.make_below(&Credentials::of_user(0, 0)).err(), Some(Errno::EINVAL));
}
