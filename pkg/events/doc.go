// Package events is the message contract of ax: the subjects and streams, the bodies that travel on them, their headers,
// and the ids derived from them. Services meet here and in the store only.
//
// Bodies are JSON in camelCase. Headers carry CloudEvents 1.0 attributes in binary mode and a W3C traceparent; all of them
// are optional on submit, so that a plain publish works. Decoding is strict: an unknown field is an error that names it.
package events
