//! POSIX message queues (mq_overview(7)) and the file system `mqueue`, which holds their names.
//!
//! | module | concept |
//! |---|---|
//! | [`state`] | the messages of a queue, by priority, and the threads that wait |
//! | [`queue`] | a queue that threads send to and receive from |
//! | [`notify`] | registrations for a message to an empty queue |
//! | [`account`] | limits for the number of queues, and for the bytes of a user's queues |
//! | [`node`], [`directory`] | a queue as a file; the names, and the file system |
//!
//! All mounts show the same directory. A queue lives as long as it has a name or is open. Callers:
//! [`super::calls`], mount(2), /proc/sys/fs/mqueue. Everything here may sleep.
//!
//! Lock order: the directory's names > a queue's state > a node's attributes > a user's account.
//! All are spin locks; a holder neither sleeps, touches user memory, drops a message nor sends a
//! signal.

pub mod account;
pub mod directory;
pub mod node;
pub mod notify;
pub mod queue;
pub mod state;
