//! Keys and keyrings: keyrings(7), add_key(2), request_key(2), keyctl(2).
//!
//! A key is a named piece of bytes that the kernel keeps for programs; a keyring is a key that
//! links others. Threads, processes, sessions and users have keyrings, and a caller *possesses*
//! what it can find through its own. Linux' relatives are in `security/keys`.
//!
//! | module | concept |
//! |---|---|
//! | [`kind`] | kinds of keys, and payloads |
//! | [`store`] | all keys: links, rights, searches, quotas |
//! | [`limits`] | quotas per user |
//! | [`held`] | the keyrings of threads and processes |
//! | [`call`] | a system call's use of all this |
//! | [`calls`] | the system calls |
//!
//! There is no program that makes keys on request (/sbin/request-key): request_key finds a key, or
//! there is none.
//!
//! Lock order: a thread's or process' slot is locked alone. [`held::KEYS`] is a sleeping lock; user
//! memory is not accessed under it, and a handle is not dropped under it.

pub mod call;
pub mod calls;
pub mod held;
pub mod kind;
pub mod limits;
pub mod store;
#[cfg(test)]
mod tests;
